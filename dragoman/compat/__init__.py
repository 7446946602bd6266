"""Names and behaviour of other systems on our engine: whoever comes from one of them changes an
import. Each package here is one system; what it got wrong is not repeated."""
