"""The API that chat programs speak, in front of agents and gateways: `/v1/models`,
`/v1/chat/completions` and `/v1/responses`.

An edge like any other: a request is decoded to a message of the model, the service of the agent
answers it, and what comes back is encoded. Nothing is stored here: which task a message continues
is read from the tasks of its caller (`openai/conversations.py`). `openai/part.py` joins it to an
app.
"""
