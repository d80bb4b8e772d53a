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

/* Its dark colours are those of a class, which follows what the browser wants. */
const dark = matchMedia('(prefers-color-scheme: dark)')
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches)
dark.addEventListener('change', follow)
follow()

/*
 * What keyboards and screen readers need beyond what it gives them. Each operation is a button with a link in it that does what the button
 * does: it is one thing. Bodies have a name, and what scrolls can be scrolled with keys.
 */
const page = document.querySelector('#reference')
new MutationObserver(() => {
  for (const link of page.querySelectorAll('.opblock-summary-control a[href]')) link.removeAttribute('href')
  for (const body of page.querySelectorAll('.body-param__text:not([aria-label])')) body.ariaLabel = 'Request body'
  for (const example of page.querySelectorAll('pre.microlight:not([tabindex])')) example.tabIndex = 0
}).observe(page, { childList: true, subtree: true })
