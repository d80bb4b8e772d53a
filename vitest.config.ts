import { defineConfig } from 'vitest/config'

const results = process.env.SLUICE_TEST_RESULTS

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/global-setup.ts'],
    testTimeout: 30_000,
    hookTimeout: 120_000,
    // Real brokers and models share two cores: more files at once only make them wait for each other.
    maxWorkers: 2,
    reporters: results ? ['default', ['json', { outputFile: results }]] : ['default'],
  },
})
