/** Runs the tests of an installed suite against a server, as the authors run them against their mock. */
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Installed } from './install.ts'
import type { Result } from './results.ts'
import type { Suite } from './suites.ts'

const SUITE_MS = 1_200_000
const OUTPUT_BYTES_MAX = 64 * 1024 * 1024

/**
 * Runs all tests.
 *
 * @param url Base URL without a path
 * @throws Error with the last output of the runner if there are no results
 */
export async function execute(suite: Suite, installed: Installed, url: string): Promise<Result[]> {
  const directory = await mkdtemp(join(installed.directory, 'run-'))
  const report = join(directory, 'report')
  const env = {
    PATH: [installed.bin, process.env.PATH].filter(Boolean).join(':'),
    HOME: directory,
    PYTHONDONTWRITEBYTECODE: '1',
    PYTHONPATH: [import.meta.dirname, installed.directory].join(':'),
    REPORT_FILE: report,
    TEST_API_BASE_URL: url + suite.path,
  }
  try {
    const isPython = suite.language === 'python'
    const output = isPython ? await pytest(suite, installed, env) : await vitest(suite, installed, report, env)
    const text = await readFile(report, 'utf8').catch(() => {
      throw new Error(`There are no results: ${output.trim().slice(-2_000)}`)
    })
    return isPython ? readLines(text) : readVitest(text, installed.directory)
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}

/** Runs the tests one after the other, because the service needs CPU time, too. Warnings of Python are not under test. */
function pytest(
  { tests, plugins = [] }: Suite,
  { directory, bin = '' }: Installed,
  env: Record<string, string>,
): Promise<string> {
  const options = ['-c', '/dev/null', '--rootdir=.', '-o', 'asyncio_mode=auto', '-p', 'no:warnings', '-p', 'report']
  const loop = ['-o', 'asyncio_default_fixture_loop_scope=session', '-p', 'no:cacheprovider', '-q', '--tb=short']
  const own = plugins.flatMap((plugin) => ['-p', plugin])
  const files = tests.map((path) => `tests/${path}`)
  return launch(join(bin, 'python'), ['-m', 'pytest', ...options, ...loop, ...own, ...files], directory, env)
}

function vitest(
  { tests }: Suite,
  { directory }: Installed,
  report: string,
  env: Record<string, string>,
): Promise<string> {
  const program = join(directory, '..', 'node_modules', 'vitest', 'vitest.mjs')
  const options = [
    'run',
    '--globals',
    '--reporter=json',
    `--outputFile=${report}`,
    '--maxWorkers=1',
    '--testTimeout=60000',
  ]
  const files = tests.map((path) => `tests/${path}`)
  return launch(process.execPath, [program, ...options, `--root=${directory}`, ...files], directory, env)
}

/**
 * Runs a program and returns its output. A nonzero exit code is no error here, because a test runner reports a failed test by a
 * nonzero exit code.
 */
function launch(command: string, args: string[], cwd: string, env: Record<string, string>): Promise<string> {
  return new Promise((resolve, reject) => {
    const options = { cwd, env, timeout: SUITE_MS, maxBuffer: OUTPUT_BYTES_MAX }
    execFile(command, args, options, (error, stdout, stderr) => {
      if (process.env.CLIENT_LOG) process.stderr.write(stderr)
      if (error?.killed) reject(new Error(`The tests took more than ${SUITE_MS / 1000} s.`))
      else resolve(`${stdout}\n${stderr}`)
    })
  })
}

function readLines(text: string): Result[] {
  return text
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line))
}

interface VitestFile {
  name: string
  assertionResults: { fullName: string; status: string; failureMessages: string[] }[]
  message: string
}

function readVitest(text: string, directory: string): Result[] {
  const { testResults } = JSON.parse(text) as { testResults: VitestFile[] }
  return testResults.flatMap(({ name: path, assertionResults, message }) => {
    const file = path.replace(`${directory}/`, '')
    if (assertionResults.length === 0) return [{ name: file, outcome: 'failed' as const, message }]
    return assertionResults.map(({ fullName, status, failureMessages }) => ({
      name: `${file} ${fullName}`,
      outcome:
        status === 'passed' ? ('passed' as const) : status === 'failed' ? ('failed' as const) : ('skipped' as const),
      message: failureMessages.join('\n').slice(0, 2_000),
    }))
  })
}
