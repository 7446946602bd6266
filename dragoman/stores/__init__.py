"""Where logs are kept. `interface` says what a store promises; the rest are stores."""
