/**
 * Finds a Docker daemon for tests: one that is running, otherwise a private one. A private daemon requires that its programs are installed and
 * that the tests run as root. Such a daemon has its own data directory, socket and runtime directory, and no network.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import Docker from 'dockerode'
import { until } from '../stack.ts'

const DOCKERD = ['/usr/sbin/dockerd', '/usr/bin/dockerd', '/usr/local/bin/dockerd'].find((path) => existsSync(path))
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
const START_MS = 60_000
const STOP_MS = 20_000
const PING_MS = 2_000

export interface TestDocker {
  /** Path of the daemon's unix socket. */
  readonly socketPath: string
  /** True if the daemon was started by this process, so that nothing else uses it. */
  readonly isPrivate: boolean
  stop(): Promise<void>
}

/** Options of a private daemon. */
export interface PrivateDocker {
  /** Control group below which the daemon creates those of its containers. Default: chosen by the daemon. */
  readonly cgroupParent?: string | undefined
}

/**
 * Finds or starts a daemon.
 *
 * @returns The daemon, or the reason why there is none
 */
export async function findDocker(options: PrivateDocker = {}): Promise<TestDocker | string> {
  const running = new Docker({ timeout: PING_MS })
  if (await answers(running)) return { socketPath: socketOf(running), isPrivate: false, stop: async () => undefined }
  if (DOCKERD === undefined) return 'no Docker daemon answers, and dockerd is not installed (apt-get install docker.io)'
  if (process.getuid?.() !== 0) return 'no Docker daemon answers, and only root can start one'
  return await startDockerd(DOCKERD, options)
}

/** Starts a private daemon. Images are kept between test runs, because an import copies 400 MB. */
async function startDockerd(program: string, { cgroupParent }: PrivateDocker): Promise<TestDocker | string> {
  const data = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'dockerd')
  await mkdir(data, { recursive: true })
  const runDir = await mkdtemp(join(tmpdir(), 'sluice-dockerd-'))
  const socketPath = join(runDir, 'docker.sock')
  const places = ['--data-root', data, '--exec-root', join(runDir, 'exec'), '-p', join(runDir, 'docker.pid')]
  const alone = ['--bridge=none', '--iptables=false', '--ip6tables=false', '--userland-proxy=false']
  const options = ['--exec-opt', 'native.cgroupdriver=cgroupfs', '--log-driver', 'none', '--log-level', 'error']
  if (cgroupParent !== undefined) options.push('--cgroup-parent', cgroupParent)
  // If the test process is killed, then it cannot stop the daemon. With this option, the kernel stops the daemon when its parent dies.
  const withUs = ['--pdeathsig', 'TERM', program, '-H', `unix://${socketPath}`]
  const daemon = spawn('setpriv', [...withUs, ...places, ...alone, ...options], {
    env: { PATH },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let problems = ''
  daemon.stderr.on('data', (chunk) => {
    problems = (problems + chunk).slice(-2000)
  })
  const exited = once(daemon, 'exit')
  const stop = async () => {
    daemon.kill('SIGTERM')
    const kill = setTimeout(() => daemon.kill('SIGKILL'), STOP_MS)
    if (daemon.exitCode === null && daemon.signalCode === null) await exited
    clearTimeout(kill)
    await rm(runDir, { recursive: true, force: true })
  }
  const docker = new Docker({ socketPath, timeout: PING_MS })
  const isUp = async () => daemon.exitCode !== null || (await answers(docker))
  await until(isUp, { withinMs: START_MS }).catch(() => undefined)
  if (await answers(docker)) return { socketPath, isPrivate: true, stop }
  await stop()
  return `dockerd did not start: ${problems.trim().split('\n').at(-1)}`
}

async function answers(docker: Docker): Promise<boolean> {
  return await docker.ping().then(
    () => true,
    () => false,
  )
}

function socketOf(docker: Docker): string {
  return (docker.modem as { socketPath?: string }).socketPath ?? '/var/run/docker.sock'
}
