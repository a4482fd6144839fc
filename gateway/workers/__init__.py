"""Several gateway processes behind one port: who starts them, hands them connections, and adds up what they say."""
