"""Vision-language models that judge what a robot's cameras see, behind one interface."""
