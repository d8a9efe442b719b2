"""The checks: each takes configuration and facts, and yields what it says of them."""
