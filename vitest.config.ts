import { configDefaults, defineConfig } from 'vitest/config'
import { Progress } from './test/support/progress.ts'
import { ALL, LongestFirst, leftOut } from './test/support/tiers.ts'

const results = process.env.SLUICE_TEST_RESULTS

export default defineConfig(({ mode }) => ({
  test: {
    include: [ALL],
    exclude: [...configDefaults.exclude, ...leftOut(mode)],
    globalSetup: ['test/support/global-setup.ts'],
    // Behaviour is asserted, never speed: a timeout only ends what hangs.
    testTimeout: 60_000,
    hookTimeout: 120_000,
    slowTestThreshold: 5_000,
    // Real brokers and models share two cores: more files at once only make them wait for each other.
    maxWorkers: 2,
    sequence: { sequencer: LongestFirst },
    // Other work on a shared machine stops processes for seconds. What passed only the second time is printed as such.
    retry: process.env.CI === 'true' ? 1 : 0,
    reporters: ['default', new Progress(), ...(results ? ['json'] : [])],
    outputFile: results ?? '',
  },
}))
