import { effect, signal } from '@preact/signals'

const KEY = 'sluice-theme'
const THEMES = ['system', 'light', 'dark'] as const

/** How the console looks: as the system does, or as was chosen here. */
export type Theme = (typeof THEMES)[number]

/** The theme of this browser. */
export const theme = signal<Theme>(THEMES.find((one) => one === localStorage.getItem(KEY)) ?? 'system')

effect(() => {
  localStorage.setItem(KEY, theme.value)
  document.documentElement.dataset.theme = theme.value
})

/** Goes on to the next theme. */
export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? 'system'
}
