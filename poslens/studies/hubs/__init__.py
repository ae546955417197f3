"""The study `hubs`: documents that many queries retrieve although they do not answer them."""
