"""HTTP and the command line. Starts workers as processes, imports none of them."""
