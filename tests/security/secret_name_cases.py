"""Names of secrets in every spelling, and names that only look like it."""

# fmt: off
SECRET_NAMES = (
    "authToken", "auth_token", "X-Auth-Token", "AUTH_TOKEN", "auth.token", "authtoken", "AUTHTOKEN",
    "my-api-key-2", "apiKey", "APIKey", "apikey", "X-API-Key", "OPENAI_API_KEY", "apiKeys",
    "dbPassphrase", "passphrase", "db_password", "DB_PASSWORD", "db.password", "user[password]",
    "password1", "passwordOld", "passWord", "dbpassword", "smtpPass", "MYSQL_PWD", "passwd",
    "clientSecret", "client_secret", "webhook-secret", "webhookSecret", "secret", "secrets",
    "secretValue", "SECRET_KEY_BASE", "secret_id", "privateKey", "private_key", "signing-key",
    "signingKey", "ssh_key", "sshkey", "encryptionKey", "awsSecretAccessKey", "master_key",
    "JWT", "myJWT", "jwtToken", "bearer", "bearerToken", "cookie", "Set-Cookie", "session_cookie",
    "sessionId", "session-id", "Mcp-Session-Id", "PHPSESSID", "pushToken", "push_token",
    "refresh_token", "accessToken", "idToken", "id_token", "csrfToken", "X-XSRF-TOKEN",
    "OAuthToken", "tokenValue", "token2", "nextAuthToken", "access_tokens", "Authorization",
    "Proxy-Authorization", "authHeader", "basicAuth", "credentials", "dbCredential", "creds",
    "clientAssertion", "device_code", "codeVerifier", "recoveryCodes", "otp", "connectionString",
    "X-Amz-Security-Token", "pass\u200bword", "\uff50assword", "SECRETkey", "dbPASSWORDold",
    "apitokens", "dbpasswords", "clientsecrets", "passwordold", "apikeyprod", "privkey", "dbpass",
    "password_of_service", "tokenForServer", "api-key-from-env",
)
OPEN_NAMES = (
    "tokenizer", "tokenization", "maxTokens", "max_tokens", "inputTokens", "completion_tokens",
    "tokenCount", "token_limit", "tokensPerSecond", "passport", "passenger", "bypass", "compass",
    "secretary", "secretion", "author", "authorName", "authority", "authored", "contextId",
    "taskId", "messageId", "pageToken", "nextPageToken", "next_page_token", "publicKey",
    "primary_key", "sortKey", "idempotency-key", "cacheKey", "keyboard", "keyword", "monkey",
    "tokenUrl", "token_type", "token_endpoint", "authorizationUrl", "passwordPolicy", "authMethod",
    "secretName", "key_id", "apiKeySecurityScheme", "securitySchemes", "oauth2SecurityScheme",
    "maxtokens", "totaltokens", "passwordless", "passwordpolicy", "apikeyname", "oauthUrl",
    "cookieConsent", "bearing", "accredited", "accession", "sessions", "text", "name", "url",
)
# fmt: on
