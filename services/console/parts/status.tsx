export function Status({ status }: { readonly status: string }) {
  return <span class={`status ${status}`}>{status.replace('_', ' ')}</span>
}
