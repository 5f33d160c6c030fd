"""The engines: any OpenAI-compatible server (`openai_http`), and llama.cpp inside the worker (`llamacpp`)."""
