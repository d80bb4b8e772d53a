/* API reference: Swagger UI with /openapi.json. No request goes to another host. */
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

/* Swagger UI uses its dark theme if this class is set. The class follows the theme of the console, which may follow the browser. */
const dark = matchMedia('(prefers-color-scheme: dark)')
const { classList, dataset } = document.documentElement
const follow = () =>
  classList.toggle('dark-mode', dataset.theme === 'dark' || (dataset.theme !== 'light' && dark.matches))
dark.addEventListener('change', follow)
follow()

/*
 * Accessibility fixes for Swagger UI. The link inside the button of each operation duplicates the button, so it is removed from the tab
 * order. Request bodies get an accessible name. Scrollable examples become focusable, so that keys can scroll them.
 */
const page = document.querySelector('#reference')
new MutationObserver(() => {
  for (const link of page.querySelectorAll('.opblock-summary-control a[href]')) link.removeAttribute('href')
  for (const body of page.querySelectorAll('.body-param__text:not([aria-label])')) body.ariaLabel = 'Request body'
  for (const example of page.querySelectorAll('pre.microlight:not([tabindex])')) example.tabIndex = 0
}).observe(page, { childList: true, subtree: true })
