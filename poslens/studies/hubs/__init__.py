"""Hubs: documents that many queries retrieve and do not ask for."""
