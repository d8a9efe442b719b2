"""What the site of the documentation needs beside the pages of `docs/`."""
