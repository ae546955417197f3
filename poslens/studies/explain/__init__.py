"""Attribution of one query-document pair: the command `explain` and its page's service."""
