"""What commands share as programs of a terminal: output, drawing again, completion."""
