/**
 * Simulates several machines on one host. Each is a network namespace on a common bridge, with its own /etc, /opt, /var/lib, users and host
 * names. The bridge is in a namespace, too, so the network of the host does not change. Requires root, `ip` and overlay mounts.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { until } from '../stack.ts'

const CLIENT_MS = 120_000

export interface Machine {
  readonly address: string
  /**
   * Runs a script as root with bash and returns its output.
   *
   * @throws Error with standard output and standard error if the script fails
   */
  run(script: string, env?: Record<string, string>): Promise<string>
  /**
   * Starts a command that runs until the end of the test.
   *
   * @returns Functions that read its output so far, and whether it has exited
   */
  start(command: readonly string[], env?: Record<string, string>): { readonly output: () => string; exited(): boolean }
}

export interface Machines extends AsyncDisposable {
  readonly all: readonly Machine[]
  readonly directory: string
}

/** Reason why this host cannot create machines; undefined if it can. */
export function whyNoMachines(): string | undefined {
  const script = `d=$(mktemp -d) && mkdir $d/u $d/w && mount -t tmpfs t $d/w && mkdir $d/w/u $d/w/w &&
    mount -t overlay o -o lowerdir=/etc,upperdir=$d/w/u,workdir=$d/w/w /etc && ip link add br0 type bridge`
  const { status, stderr } = spawnSync('unshare', ['-mn', 'sh', '-c', script])
  return status === 0 ? undefined : `no namespaces (root, iproute2, overlay): ${String(stderr).trim()}`
}

/**
 * Creates machines.
 *
 * @param count Number of machines, with the addresses 10.0.0.1, 10.0.0.2 and so on
 */
export async function openMachines(count: number): Promise<Machines> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-machines-'))
  const processes: ChildProcess[] = []
  const hold = async (prepare: string) => {
    const child = spawn('unshare', [
      '-mn',
      'sh',
      '-c',
      `${prepare}\nip link set lo up; echo ready; exec sleep infinity`,
    ])
    processes.push(child)
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk))
    await until(() => output.includes('ready') || child.exitCode !== null)
    if (!output.includes('ready')) throw new Error(`no machine: ${output}`)
    return child.pid ?? 0
  }
  const bridge = await hold('ip link add br0 type bridge && ip link set br0 up || exit 1')
  const machines: Machine[] = []
  for (let n = 1; n <= count; n++) {
    const own = join(directory, String(n))
    for (const name of ['upper', 'work', 'opt', 'lib']) mkdirSync(join(own, name), { recursive: true })
    // The upper directory is on a tmpfs. The disk of the host may itself be an overlay, and an overlay cannot be the upper directory of another
    // one.
    const pid = await hold(`set -e
      mount -t tmpfs t ${own} && mkdir ${own}/upper ${own}/work
      mount -t overlay o -o lowerdir=/etc,upperdir=${own}/upper,workdir=${own}/work /etc
      mount -t tmpfs t /opt; mount -t tmpfs t /var/lib; mount -t tmpfs t /run
      mkdir /opt/sluice && mount --bind ${process.cwd()} /opt/sluice`)
    const link = `ip link add v${n} type veth peer name eth0 netns ${pid}; ip link set v${n} master br0 up`
    const up = `ip addr add 10.0.0.${n}/24 dev eth0; ip link set eth0 up`
    for (const [of, script] of [[bridge, link] as const, [pid, up] as const])
      spawnSync('nsenter', ['-t', String(of), '-n', 'sh', '-ec', script])
    machines.push(machineOf(`10.0.0.${n}`, pid, processes))
  }
  return {
    all: machines,
    directory,
    async [Symbol.asyncDispose]() {
      for (const child of processes.toReversed()) {
        if (child.exitCode !== null || child.signalCode !== null) continue
        child.kill('SIGKILL')
        await once(child, 'exit')
      }
      await rm(directory, { recursive: true, force: true })
    },
  }
}

function machineOf(address: string, pid: number, processes: ChildProcess[]): Machine {
  const enter = (command: readonly string[], env: Record<string, string>) => {
    const child = spawn('nsenter', ['-t', String(pid), '-m', '-n', `--wd=${process.cwd()}`, ...command], {
      env: { PATH: process.env.PATH, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let output = ''
    for (const stream of [child.stdout, child.stderr])
      stream?.on('data', (chunk) => {
        output = (output + chunk).slice(-200_000)
      })
    return { child, output: () => output }
  }
  return {
    address,
    async run(script, env = {}) {
      const { child, output } = enter(['timeout', String(CLIENT_MS / 1_000), 'bash', '-ec', script], env)
      const [code] = await once(child, 'close')
      if (code !== 0) throw new Error(`exit code ${code} on ${address} of\n${script}\n${output()}`)
      return output()
    },
    start(command, env = {}) {
      // Without a pid namespace, nsenter does not fork. The child is therefore the command itself, and its exit is the exit of the command.
      const { child, output } = enter(command, env)
      processes.push(child)
      return { output, exited: () => child.exitCode !== null || child.signalCode !== null }
    },
  }
}
