"""All calls of vision-language models of a site, in virtual time, through the gateway's queue."""
