"""Attribution of one query-document pair: commands `explain` and `compare`, and their service."""
