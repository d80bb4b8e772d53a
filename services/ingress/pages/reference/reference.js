/* The reference of the API, by Swagger UI from /openapi.json. Nothing is asked of any other host. */
window.SwaggerUIBundle({
  url: '/openapi.json',
  dom_id: '#reference',
  deepLinking: true,
  docExpansion: 'list',
  defaultModelsExpandDepth: 0,
  defaultModelExpandDepth: 2,
  displayRequestDuration: true,
  filter: true,
  showExtensions: true,
  tryItOutEnabled: true,
  validatorUrl: null,
})
