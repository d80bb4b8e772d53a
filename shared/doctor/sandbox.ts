import type { Config } from '#shared/config/config.ts'
import { openLog } from '#shared/log/log.ts'
import type { LoadAdapter } from '#shared/sandbox/choose.ts'
import type { SandboxName } from '#shared/sandbox/sandbox.ts'
import { type Check, type Finding, failed, ok, reasonOf, skipped, warned } from './check.ts'

/** Longest wait for one sandbox: interpreters load their libraries first. */
const OPEN_MS_MAX = 60_000

/** Where code runs: each sandbox is opened and really runs a line of Python; nothing is fetched or built. */
export const sandboxCheck: Check = {
  name: 'sandbox',
  fix: 'docs/code.md says what each sandbox needs.',
  msMax: 4 * OPEN_MS_MAX,
  async run(config) {
    if (config.sandbox === 'off') return [skipped('sandbox', 'not needed: SANDBOX=off, so no code is run here')]
    // With it come all adapters, which no other check needs.
    const { sandboxAdapters } = await import('#shared/ports.ts')
    const tried: Tried[] = []
    for (const adapter of sandboxAdapters(config, openLog('silent', 'sluice'))) tried.push(await tryAdapter(adapter))
    const chosen = tried.find(({ works }) => works)
    return tried.map((one) => (chosen ? beside(one, chosen) : withoutSandbox(one, config)))
  },
}

/** One works, so that another does not is no harm. */
function beside({ name, works, message, details }: Tried, chosen: Tried): Finding {
  if (!works) return skipped('sandbox', `${name}: not needed, ${chosen.name} is used: ${message}`)
  const place = name === chosen.name ? 'works, chosen' : 'works, not chosen'
  return { ...ok('sandbox', `${name}: ${place}: ${message}`), ...(details && { details }) }
}

/** None works, so it matters why: each is said with what to do. */
function withoutSandbox({ name, message }: Tried, { sandbox }: Config): Finding {
  const fix = 'The service prepares it at its start where it can; docs/code.md says what it needs.'
  const text = `${name}: not available: ${message}`
  return sandbox === 'auto' ? warned('sandbox', text, fix) : failed('sandbox', text, fix)
}

/** What came of trying one. */
interface Tried {
  readonly name: SandboxName
  readonly works: boolean
  readonly message: string
  readonly details?: readonly string[]
}

async function tryAdapter({ name, load }: LoadAdapter): Promise<Tried> {
  try {
    const adapter = await load()
    await adapter.check(AbortSignal.timeout(OPEN_MS_MAX))
    const sandbox = await adapter.open(AbortSignal.timeout(OPEN_MS_MAX))
    await sandbox.close()
    const versions = Object.entries(sandbox.libraries).map(([name, version]) => `${name} ${version}`)
    return { name, works: true, message: versions.join(', '), details: adapter.guarantees }
  } catch (error) {
    return { name, works: false, message: reasonOf(error) }
  }
}
