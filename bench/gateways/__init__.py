"""What a gateway is measured by besides what it adds to a call: dead agents, many agents, agents
that dial out."""
