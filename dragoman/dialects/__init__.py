"""Wire shapes to the model and back: pure functions, one file per version, no I/O and no clock."""
