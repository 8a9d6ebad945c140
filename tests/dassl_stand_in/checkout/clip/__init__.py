OWNER = "the checkout's"
