import { effect, signal } from '@preact/signals'

const KEY = 'sluice-theme'
const THEMES = ['system', 'light', 'dark'] as const

export type Theme = (typeof THEMES)[number]

export const theme = signal<Theme>(THEMES.find((one) => one === localStorage.getItem(KEY)) ?? 'system')

effect(() => {
  localStorage.setItem(KEY, theme.value)
  document.documentElement.dataset.theme = theme.value
})

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? 'system'
}
