"""OpenAI's Responses API: its bodies become chats, answers get its words and are kept for a while."""
