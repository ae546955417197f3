"""Attribution of one query-document pair: the commands `explain` and `compare`, and the pages' service."""
