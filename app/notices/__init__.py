"""Notices of what happens on the list, to chats, pagers and mail (BLOCKLIST_NOTIFY_URL)."""
