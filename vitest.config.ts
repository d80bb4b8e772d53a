import { configDefaults, defineConfig } from 'vitest/config'
import { Failures } from './test/support/failures.ts'
import { ENVIRONMENT } from './test/support/processes/environment.ts'
import { Progress } from './test/support/progress.ts'
import { ALL, LongestFirst, leftOut } from './test/support/tiers.ts'

const results = process.env.SLUICE_TEST_RESULTS
// Each test file is a process that loads the same libraries.
process.env.NODE_COMPILE_CACHE ??= ENVIRONMENT.NODE_COMPILE_CACHE

export default defineConfig(({ mode }) => ({
  test: {
    include: [ALL],
    exclude: [...configDefaults.exclude, ...leftOut(mode)],
    // Hints of the command line name `npx` if npx started the process, so that tests would depend on the start of vitest.
    env: { npm_command: 'run-script' },
    globalSetup: ['test/support/global-setup.ts'],
    // Behaviour is asserted, never speed: a timeout only ends what hangs.
    testTimeout: 60_000,
    hookTimeout: 120_000,
    slowTestThreshold: 5_000,
    // For two cores: files wait a third of their time, for outages, leases and starts. Brokers and models share the cores, so
    // more files at once only make them wait for each other.
    maxWorkers: 3,
    // Node itself runs the TypeScript of product and tests, as in production. The module runner of Vite would transform each file again.
    experimental: { viteModuleRunner: false },
    sequence: { sequencer: LongestFirst },
    // Other work on a shared machine stops processes for seconds. What passed only the second time is printed as such.
    retry: process.env.CI === 'true' ? 1 : 0,
    reporters: ['default', new Progress(), ...(results ? ['json', new Failures(`${results}.failures`)] : [])],
    outputFile: results ?? '',
  },
}))
