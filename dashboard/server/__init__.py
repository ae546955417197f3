"""The web server: access, sessions, login, and what belongs to one reader."""
