"""The SQLite files: connections, results, summaries, maintenance."""
