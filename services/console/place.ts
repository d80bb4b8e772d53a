import { signal } from '@preact/signals'

/** Where the console lies. */
export const BASE = '/console'

/** The address that is shown. */
export const place = signal(new URL(location.href))

addEventListener('popstate', () => {
  place.value = new URL(location.href)
})

/** Links of ours change what is shown, without loading a page. */
addEventListener('click', (event) => {
  const link = (event.target as Element | null)?.closest?.('a')
  const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey
  if (!link || !isPlain || event.defaultPrevented || link.target || !isOurs(new URL(link.href))) return
  event.preventDefault()
  go(link.href)
})

/** Shows another address. @param replaces It takes the place of this one in the history */
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

/** A value of the query of this address; empty where it is not there. */
export function asked(name: string): string {
  return place.value.searchParams.get(name) ?? ''
}

/** Changes values of the query; empty ones go. */
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
