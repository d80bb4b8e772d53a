import type { Config } from '#shared/config.ts'
import { openLog } from '#shared/log.ts'
import type { LoadAdapter } from '#shared/sandbox/open-sandbox.ts'
import type { SandboxName } from '#shared/sandbox/sandbox.ts'
import { type Check, type Finding, failed, ok, reasonOf, warned } from './check.ts'

/** Longest wait for one sandbox: interpreters load their libraries first. */
const OPEN_MS_MAX = 60_000

/** Where code runs: each sandbox is opened and really runs a line of Python; nothing is fetched or built. */
export const sandboxCheck: Check = {
  name: 'sandbox',
  fix: 'docs/code.md says what each sandbox needs.',
  msMax: 4 * OPEN_MS_MAX,
  async run(config) {
    if (config.sandbox === 'off') return [ok('sandbox', 'SANDBOX=off: code is not run here')]
    // With it come all adapters, which no other check needs.
    const { sandboxAdapters } = await import('#shared/ports.ts')
    const findings: Finding[] = []
    let chosen: SandboxName | undefined
    for (const adapter of sandboxAdapters(config, openLog('silent', 'sluice'))) {
      const tried = await tryAdapter(adapter)
      if (tried.works) chosen ??= adapter.name
      const place = tried.works ? (chosen === adapter.name ? 'works, chosen' : 'works, not chosen') : 'not available'
      const { details, message } = tried
      findings.push({ ...ok('sandbox', `${adapter.name}: ${place}: ${message}`), ...(details && { details }) })
    }
    return chosen === undefined ? findings.map((finding) => withoutSandbox(finding, config)) : findings
  },
}

/** None works, so it matters why: each is said with what to do. */
function withoutSandbox({ check, message }: Finding, { sandbox }: Config): Finding {
  const fix = 'The service prepares it at its start where it can; docs/code.md says what it needs.'
  return sandbox === 'auto' ? warned(check, message, fix) : failed(check, message, fix)
}

/** What came of trying one. */
interface Tried {
  readonly works: boolean
  readonly message: string
  readonly details?: readonly string[]
}

async function tryAdapter({ load }: LoadAdapter): Promise<Tried> {
  try {
    const adapter = await load()
    await adapter.check(AbortSignal.timeout(OPEN_MS_MAX))
    const sandbox = await adapter.open(AbortSignal.timeout(OPEN_MS_MAX))
    await sandbox.close()
    const versions = Object.entries(sandbox.libraries).map(([name, version]) => `${name} ${version}`)
    return { works: true, message: versions.join(', '), details: adapter.guarantees }
  } catch (error) {
    return { works: false, message: reasonOf(error) }
  }
}
