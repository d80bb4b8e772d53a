import { signal } from '@preact/signals'

export const BASE = '/console'

export const currentUrl = signal(new URL(location.href))

addEventListener('popstate', () => {
  currentUrl.value = new URL(location.href)
})

/**
 * Links within the console navigate without a page load. The browser handles clicks with a modifier
 * key, `target` links and links to an anchor as usual.
 */
addEventListener('click', (event) => {
  const link = (event.target as Element | null)?.closest?.('a')
  const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey
  if (!link || !isPlain || event.defaultPrevented || link.target || link.hash || !isInConsole(new URL(link.href)))
    return
  event.preventDefault()
  navigate(link.href)
})

/**
 * Keys of all lists. While a row has the focus, `j`, `k` and the arrow keys move between the rows. No single letter works without this focus
 * (WCAG 2.1.4), because speech input would trigger such a key by accident.
 */
addEventListener('keydown', (event) => {
  const { key, target, ctrlKey, metaKey, altKey } = event
  if (ctrlKey || metaKey || altKey) return
  const rows = [...document.querySelectorAll<HTMLElement>('main .row-link')]
  const at = rows.indexOf(target as HTMLElement)
  const next = at < 0 ? undefined : { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1 }[key]
  const found = rows[next ?? -1]
  if (!found) return
  event.preventDefault()
  found.focus()
})

export function navigate(href: string, replaces = false): void {
  const url = new URL(href, location.href)
  history[replaces ? 'replaceState' : 'pushState'](null, '', url)
  const isOtherScreen = url.pathname !== currentUrl.value.pathname
  currentUrl.value = url
  if (isOtherScreen) {
    scrollTo(0, 0)
    document.querySelector('main')?.focus({ preventScroll: true })
  }
}

export function queryParam(name: string): string {
  return currentUrl.value.searchParams.get(name) ?? ''
}

/** Sets query parameters of the current URL and removes those with an empty value. Adds no history entry. */
export function setQuery(changes: Readonly<Record<string, string>>): void {
  navigate(urlWith(changes), true)
}

/** The current URL with changed query parameters, as the target of a link. Parameters with an empty value are removed. */
export function urlWith(changes: Readonly<Record<string, string>>): string {
  const url = new URL(currentUrl.value)
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value)
    else url.searchParams.delete(name)
  }
  url.hash = ''
  return url.href
}

function isInConsole({ origin, pathname }: URL): boolean {
  return origin === location.origin && (pathname === BASE || pathname.startsWith(`${BASE}/`))
}
