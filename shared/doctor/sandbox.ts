import type { Config } from '#shared/config/config.ts'
import { openLog } from '#shared/log/log.ts'
import type { LoadAdapter } from '#shared/sandbox/choose.ts'
import type { SandboxName } from '#shared/sandbox/sandbox.ts'
import { type Check, type Finding, failed, ok, reasonOf, skipped, warned } from './check.ts'

/** Timeout per sandbox in ms. A Python interpreter may need many seconds to start, because it loads its libraries. */
const OPEN_MS_MAX = 60_000

/** Checks the sandboxes for code: opens each one and runs a line of Python. The check downloads and builds nothing. */
export const sandboxCheck: Check = {
  name: 'sandbox',
  remediation: 'docs/guides/code.md lists the requirements of each sandbox.',
  msMax: 4 * OPEN_MS_MAX,
  async run(config) {
    if (config.sandbox === 'off') return [skipped('sandbox', 'not needed: SANDBOX=off, so no code runs here')]
    const { sandboxAdapters } = await import('#shared/ports.ts')
    const tried: Tried[] = []
    for (const adapter of sandboxAdapters(config, openLog('silent', 'sluice'))) tried.push(await tryAdapter(adapter))
    const chosen = tried.find(({ works }) => works)
    return tried.map((one) => (chosen ? withSandbox(one, chosen) : withoutSandbox(one, config)))
  },
}

/** Returns the finding about one sandbox if another one works. A sandbox that fails is then not needed, so its status is `skip`. */
function withSandbox({ name, works, message, details }: Tried, chosen: Tried): Finding {
  if (!works)
    return skipped('sandbox', `${name} does not work (${message}). It is not needed, because ${chosen.name} is used.`)
  const role = name === chosen.name ? 'works and is used' : 'works, but is not used'
  return { ...ok('sandbox', `${name} ${role}: ${message}`), ...(details && { details }) }
}

function withoutSandbox({ name, message }: Tried, { sandbox }: Config): Finding {
  const remediation =
    'The service tries to prepare the sandbox when it starts. docs/guides/code.md lists the requirements of each sandbox.'
  const text = `${name} is not available: ${message}`
  return sandbox === 'auto' ? warned('sandbox', text, remediation) : failed('sandbox', text, remediation)
}

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
