import { signal } from '@preact/signals'

/** Path prefix of the console. */
export const BASE = '/console'

/** The current URL. Screens read it as a signal and re-render when it changes. */
export const place = signal(new URL(location.href))

addEventListener('popstate', () => {
  place.value = new URL(location.href)
})

/** Links within the console navigate without a page load. Modified clicks and `target` links keep the browser's behaviour. */
addEventListener('click', (event) => {
  const link = (event.target as Element | null)?.closest?.('a')
  const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey
  if (!link || !isPlain || event.defaultPrevented || link.target || !isOurs(new URL(link.href))) return
  event.preventDefault()
  go(link.href)
})

/** @param replaces Replace the current history entry instead of adding one */
export function go(href: string, replaces = false): void {
  const url = new URL(href, location.href)
  history[replaces ? 'replaceState' : 'pushState'](null, '', url)
  const isOtherScreen = url.pathname !== place.value.pathname
  place.value = url
  if (isOtherScreen) {
    scrollTo(0, 0)
    document.querySelector('main')?.focus({ preventScroll: true })
  }
}

/** A query parameter of the current URL, or an empty string. */
export function asked(name: string): string {
  return place.value.searchParams.get(name) ?? ''
}

/** Sets query parameters of the current URL and removes those with an empty value. Adds no history entry. */
export function askFor(changes: Readonly<Record<string, string>>): void {
  const url = new URL(place.value)
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value)
    else url.searchParams.delete(name)
  }
  go(url.href, true)
}

function isOurs({ origin, pathname }: URL): boolean {
  return origin === location.origin && (pathname === BASE || pathname.startsWith(`${BASE}/`))
}
