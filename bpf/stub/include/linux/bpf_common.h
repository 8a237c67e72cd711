/* Empty: bcc asks for this header by name and needs nothing of it. */
