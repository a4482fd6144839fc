"""Anthropic's messages API: its bodies become chats, and answers get its words."""
