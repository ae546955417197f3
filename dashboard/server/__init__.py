"""The web server: access, sessions, login, and data private to one user."""
