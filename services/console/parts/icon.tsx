/** Stroked paths in a 24 × 24 view box. */
const PATHS = {
  brand: 'M4 7h16M4 12h11M4 17h6',
  home: 'M4 11l8-7 8 7v9h-5v-6H9v6H4z',
  jobs: 'M4 6h16M4 12h16M4 18h10',
  models: 'M12 3l9 5-9 5-9-5zM3 12l9 5 9-5M3 16l9 5 9-5',
  workers: 'M4 5h16v6H4zM4 13h16v6H4zM7 8h3M7 16h3',
  letters: 'M3 6h18v12H3zM3 7l9 7 9-7',
  keys: 'M15 9a4 4 0 1 0-4.5 4L4 19.5V21h3v-2h2v-2h2l1.5-1.5M16 7v.5',
  hook: 'M9 10a4 4 0 1 1 5 4l2 4M14 9l-4 7a4 4 0 1 1-5-2M16 18a3 3 0 1 0 3-4',
  play: 'M4 5h16v11H9l-5 4z',
  book: 'M5 4h11a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h11',
  guide: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.5 9.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M12 17v.2',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2',
  moon: 'M20 14a8 8 0 1 1-9-11 7 7 0 0 0 9 11z',
  half: 'M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18',
  leave: 'M14 4h6v16h-6M4 12h11M11 8l4 4-4 4',
  stop: 'M7 7h10v10H7z',
  send: 'M4 12h15M13 6l6 6-6 6',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  back: 'M19 12H5M11 6l-6 6 6 6',
  again: 'M4 12a8 8 0 1 1 3 6M4 20v-5h5',
  warn: 'M12 3l10 18H2zM12 10v5M12 18v.5',
  check: 'M4 12l6 6L20 6',
} as const

export type IconName = keyof typeof PATHS

/** A decorative icon, hidden from screen readers. Text next to it carries the meaning. */
export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  )
}
