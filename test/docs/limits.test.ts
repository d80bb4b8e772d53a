import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'

/* docs/reference/limits.md says what holds by default, as .env.example does. */

const UNITS: Readonly<Record<string, number>> = {
  ...{ MiB: 2 ** 20, GiB: 2 ** 30 },
  ...{ min: 60_000, h: 3_600_000, d: 86_400_000 },
}
const DEFAULTS = new Map(
  [...readFileSync('.env.example', 'utf8').matchAll(/^([A-Z_]+)=(.*)$/gm)].map(([, name, value]) => [name, value]),
)
const ROWS = [...readFileSync('docs/reference/limits.md', 'utf8').matchAll(/^\| .* \| (.+) \| (`.+`) \|$/gm)].flatMap(
  ([, defaults = '', settings = '']) => {
    const values = defaults.split(/, /)
    return settings.split(', ').map((setting, nth) => ({ setting: setting.slice(1, -1), said: values[nth] ?? '' }))
  },
)

/** The value of a setting, in its own unit: bytes, milliseconds, seconds where its name says so, or a number. */
function settingOf(setting: string, said: string): number {
  if (said === 'none') return 0
  const [, number = '', unit = ''] = /^([\d,]+)(?: (\w+))?$/.exec(said) ?? []
  const value = Number(number.replace(',', '')) * (unit === 's' ? 1_000 : (UNITS[unit] ?? 1))
  return setting.includes('SECONDS') ? value / 1_000 : value
}

/** Defaults that no constant says, because they depend on the machine. */
const OF_MACHINE = new Set(['DISK_FREE_BYTES_MIN'])

it.each(ROWS.filter(({ setting }) => !OF_MACHINE.has(setting)))('$setting is $said', ({ setting, said }) => {
  expect(DEFAULTS.get(setting)).toBe(String(settingOf(setting, said)))
})

it('says more than a few', () => {
  expect(ROWS.length).toBeGreaterThan(20)
})
