import { spawnSync } from 'node:child_process'
import { Settings } from '#shared/config/settings.ts'

/**
 * Environment variables that deployment files may set although they are not settings of Sluice. Node.js, the C library, the AWS client and
 * the systemd units read some of them. The others contain API keys of upstreams: the field `api_key_env` of a model names its variable.
 */
const FOREIGN = new Set([
  ...['HOME', 'MALLOC_MMAP_THRESHOLD_', 'NODE_EXTRA_CA_CERTS', 'ROLES'],
  ...['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'OPENAI_API_KEY', 'ANTHROPIC_API_KEY'],
])
/** Time in seconds that a process may take after its drain until it exits. */
const EXIT_S = 10
const NOTICE_MS = 5_000

/** Returns the names that are neither a setting nor a known variable of another program. */
export function strangeVariables(names: readonly string[]): string[] {
  return names.filter((name) => !(name in Settings.shape) && !FOREIGN.has(name))
}

/** Returns the minimum time in seconds that a supervisor must wait between SIGTERM and SIGKILL, for a process with these settings. */
export function graceSecondsMin(settings: Readonly<Record<string, string>>): number {
  const drainMs = Number(settings.DRAIN_MS ?? Settings.shape.DRAIN_MS.parse(undefined))
  return (drainMs + Number(settings.DRAIN_NOTICE_MS ?? NOTICE_MS)) / 1_000 + EXIT_S
}

/** Whether a program that test/deploy/requirements.txt installs is in PATH. */
export function hasDeployTool(command: string, args: readonly string[] = ['--version']): boolean {
  return spawnSync(command, args).status === 0
}
