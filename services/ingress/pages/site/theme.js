/* Applies the theme that the user chose in the console. Runs before the page is drawn, so that no page flashes in the other theme. */
document.documentElement.dataset.theme = localStorage.getItem('sluice-theme') ?? 'system'
