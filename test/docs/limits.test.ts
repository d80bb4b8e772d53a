import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'

/* Checks the defaults of docs/reference/limits.md against .env.example. */

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
    return settings
      .split(', ')
      .map((setting, nth) => ({ setting: setting.slice(1, -1), documented: values[nth] ?? '' }))
  },
)

/**
 * Converts a documented value to the unit of its setting. Times are in seconds if the name contains SECONDS, otherwise in milliseconds. Sizes are
 * in bytes, and counts have no unit.
 */
function parseDefault(setting: string, documented: string): number {
  if (documented === 'none') return 0
  const [, number = '', unit = ''] = /^([\d,]+)(?: (\w+))?$/.exec(documented) ?? []
  const value = Number(number.replace(',', '')) * (unit === 's' ? 1_000 : (UNITS[unit] ?? 1))
  return setting.includes('SECONDS') ? value / 1_000 : value
}

/** Settings that are not compared, because their default depends on the machine. */
const MACHINE_DEPENDENT = new Set(['DISK_FREE_BYTES_MIN'])

it.each(ROWS.filter(({ setting }) => !MACHINE_DEPENDENT.has(setting)))(
  'docs/reference/limits.md documents the default of $setting, which is $documented',
  ({ setting, documented }) => {
    expect(DEFAULTS.get(setting)).toBe(String(parseDefault(setting, documented)))
  },
)

it('docs/reference/limits.md lists more than 20 settings', () => {
  expect(ROWS.length).toBeGreaterThan(20)
})
