/**
 * Other people's gateways, measured beside the bare proxy when they are asked for: `--with smg,portkey`. They are no
 * dependency. Each is a program that an environment variable names, or one that `--install` has put into node_modules/.cache.
 */
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from '../../test/support/processes/free-ports.ts'
import { isListening } from '../machine/ports.ts'
import { type Processes, run } from '../machine/processes.ts'

/** The gateways that can be measured. */
export const GATEWAY_NAMES = ['smg', 'portkey'] as const
export type GatewayName = (typeof GATEWAY_NAMES)[number]

/** A gateway that is here: its name, and the path of its program. */
export interface Gateway {
  readonly name: GatewayName
  readonly program: string
}

/** A gateway that runs. */
export interface RunningGateway {
  readonly pid: number
  readonly url: URL
  /** What a call of it carries beside what every call does. */
  readonly headers: Readonly<Record<string, string>>
}

interface Recipe {
  readonly title: string
  /** The variable that names the program, and what that is. */
  readonly variable: string
  readonly what: string
  /** Where `install` puts it, in its folder. */
  readonly installed: string
  install(folder: string): Promise<void>
  start(program: string, how: StartOptions): Promise<Omit<RunningGateway, 'url'>>
}

interface StartOptions {
  readonly processes: Processes
  readonly upstream: URL
  readonly key: string
  readonly port: number
}

const CACHE = resolve(import.meta.dirname, '../../node_modules/.cache/gateways')
const READY_MS = 30_000
const TRY_AGAIN_MS = 50

const RECIPES: Record<GatewayName, Recipe> = {
  smg: {
    title: 'smg 1.13.0 (Rust, Apache-2.0, PyPI)',
    variable: 'SMG_BIN',
    what: 'the path of its command `smg`',
    installed: 'bin/smg',
    async install(folder) {
      await run('python3', ['-m', 'venv', folder], {})
      await run(join(folder, 'bin/pip'), ['install', '--quiet', 'smg==1.13.0'], {})
    },
    // Its defaults, its log included, but for where things are, and the key, which it checks.
    async start(program, { processes, upstream, key, port }) {
      const metricsPort = await freePort()
      const args = [
        ...['launch', '--host', '127.0.0.1', '--port', String(port), '--backend', 'openai', '--api-key', key],
        ...['--prometheus-host', '127.0.0.1', '--prometheus-port', String(metricsPort)],
        ...['--worker-urls', upstream.origin],
      ]
      return { pid: processes.program('smg', program, args), headers: {} }
    },
  },
  portkey: {
    title: 'Portkey 1.15.2 (@portkey-ai/gateway, Node, MIT, npm)',
    variable: 'PORTKEY_BIN',
    what: 'the path of its build/start-server.js',
    installed: 'node_modules/@portkey-ai/gateway/build/start-server.js',
    async install(folder) {
      const manifest = {
        private: true,
        dependencies: { '@portkey-ai/gateway': '1.15.2' },
        // With a later one every stream is answered with 500 (github.com/Portkey-AI/gateway/issues/1389).
        overrides: { '@hono/node-server': '1.14.1' },
      }
      writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest))
      await run('npm', ['install', '--ignore-scripts', '--no-audit', '--no-fund', '--prefix', folder], {})
    },
    // It checks no key: the call says where it goes.
    async start(program, { processes, upstream, key, port }) {
      const args = [program, `--port=${port}`, '--headless']
      const pid = processes.program('portkey', process.execPath, args, { NODE_ENV: 'production' })
      const config = { provider: 'openai', custom_host: new URL('/v1', upstream).href, api_key: key }
      return { pid, headers: { 'x-portkey-config': JSON.stringify(config) } }
    },
  },
}

/**
 * Finds the gateways that are wanted.
 *
 * @param mayInstall Whether what is missing is downloaded into node_modules/.cache
 * @param print Is told of each that is missing how it can be had.
 * @throws Error when a variable names no file, or an installation fails
 */
export async function findGateways(
  names: readonly GatewayName[],
  mayInstall: boolean,
  print: (line: string) => void,
): Promise<Gateway[]> {
  const found: Gateway[] = []
  for (const name of names) {
    const { title, variable, what } = RECIPES[name]
    const program = findProgram(name) ?? (mayInstall ? await install(name, print) : undefined)
    if (program !== undefined) found.push({ name, program })
    else print(`skipped: ${title} is not here. Say --install to download it, or set ${variable} to ${what}.`)
  }
  return found
}

/** Starts a gateway in front of the upstream; resolves when it listens. @throws Error when it does not in time */
export async function startGateway(
  { name, program }: Gateway,
  how: Omit<StartOptions, 'port'>,
): Promise<RunningGateway> {
  const port = await freePort()
  const started = await RECIPES[name].start(program, { ...how, port })
  const deadline = Date.now() + READY_MS
  while (!(await isListening(port))) {
    if (Date.now() > deadline) throw new Error(`${name} did not listen within ${READY_MS} ms: see ${how.processes.dir}`)
    await sleep(TRY_AGAIN_MS)
  }
  return { ...started, url: new URL(`http://127.0.0.1:${port}`) }
}

function findProgram(name: GatewayName): string | undefined {
  const { variable, installed } = RECIPES[name]
  const named = process.env[variable]
  if (named !== undefined && !existsSync(named)) throw new Error(`${variable}: there is no file ${named}`)
  const own = join(CACHE, name, installed)
  return named ?? (existsSync(own) ? own : undefined)
}

async function install(name: GatewayName, print: (line: string) => void): Promise<string> {
  const { title, installed, install } = RECIPES[name]
  const folder = join(CACHE, name)
  print(`installing ${title} into node_modules/.cache`)
  mkdirSync(folder, { recursive: true })
  await install(folder)
  return join(folder, installed)
}
