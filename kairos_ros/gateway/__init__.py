"""One queue for all calls of vision-language models of a site, before servers that answer them."""
