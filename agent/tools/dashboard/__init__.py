"""The web page of `numawarden dashboard`: a server for one user, and the files of the page."""
