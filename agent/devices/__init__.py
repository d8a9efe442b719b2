"""Where devices come from beside the configuration, and how containers get them."""
