#include "pharos/comm/group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "pharos/base/error.h"
#include "pharos/comm/testing.h"

namespace pharos::comm {
namespace {

using testing::run_ranks;

struct Case {
  std::int64_t size;
  at::ScalarType type;
};

/// Small whole numbers, other ones for each rank and element: their sums are exact in every type.
at::Tensor numbers_of(std::int64_t rank, std::int64_t num_elements, at::ScalarType type) {
  return at::arange(num_elements, at::kLong).mul(rank + 1).remainder(7).add(rank).to(type);
}

at::Tensor reduced(std::int64_t size, std::int64_t num_elements, at::ScalarType type, ReduceOp op) {
  std::vector<at::Tensor> all;
  for (std::int64_t rank = 0; rank < size; ++rank) all.push_back(numbers_of(rank, num_elements, at::kDouble));
  const auto stacked = at::stack(all);
  switch (op) {
    case ReduceOp::kMin:
      return stacked.amin(0).to(type);
    case ReduceOp::kMax:
      return stacked.amax(0).to(type);
    case ReduceOp::kAverage:
      return stacked.sum(0).to(type).div(static_cast<double>(size));
    case ReduceOp::kSum:
      break;
  }
  return stacked.sum(0).to(type);
}

std::vector<ReduceOp> ops_of(at::ScalarType type) {
  std::vector<ReduceOp> ops{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
  if (at::isFloatingType(type)) ops.push_back(ReduceOp::kAverage);
  return ops;
}

class Collectives : public ::testing::TestWithParam<Case> {};

TEST_P(Collectives, AllReduce) {
  const auto [size, type] = GetParam();
  run_ranks(size, [&](World& world) {
    for (const auto op : ops_of(type)) {
      auto tensor = numbers_of(world.rank(), 15, type).view({3, 5});
      world.all().all_reduce(tensor, op, {"test"}).wait();
      EXPECT_TRUE(tensor.view(-1).equal(reduced(world.size(), 15, type, op))) << static_cast<int>(op) << tensor;
    }
  });
}

TEST_P(Collectives, AllGather) {
  const auto [size, type] = GetParam();
  run_ranks(size, [&](World& world) {
    std::vector<at::Tensor> parts;
    for (std::int64_t rank = 0; rank < world.size(); ++rank) parts.push_back(numbers_of(rank, 10, type));
    const auto expected = at::cat(parts);
    const auto own = numbers_of(world.rank(), 10, type).view({2, 5});
    auto output = at::zeros({world.size() * 2, 5}, type);
    world.all().all_gather(output, own, {"test"}).wait();
    EXPECT_TRUE(output.view(-1).equal(expected));
    auto in_place = at::zeros({world.size(), 10}, type);
    in_place[world.rank()].copy_(parts[static_cast<std::size_t>(world.rank())]);
    world.all().all_gather(in_place, in_place[world.rank()], {"test in place"}).wait();
    EXPECT_TRUE(in_place.view(-1).equal(expected));
  });
}

TEST_P(Collectives, ReduceScatter) {
  const auto [size, type] = GetParam();
  run_ranks(size, [&](World& world) {
    for (const auto op : ops_of(type)) {
      const auto expected = reduced(world.size(), world.size() * 6, type, op).narrow(0, world.rank() * 6, 6);
      auto input = numbers_of(world.rank(), world.size() * 6, type);
      const auto before = input.clone();
      auto output = at::zeros({2, 3}, type);
      world.all().reduce_scatter(output, input, op, {"test"}).wait();
      EXPECT_TRUE(output.view(-1).equal(expected)) << static_cast<int>(op) << output << expected;
      EXPECT_TRUE(input.equal(before));
      auto own = input.narrow(0, world.rank() * 6, 6);
      world.all().reduce_scatter(own, input, op, {"test in place"}).wait();
      EXPECT_TRUE(own.equal(expected)) << static_cast<int>(op);
    }
  });
}

TEST_P(Collectives, Broadcast) {
  const auto [size, type] = GetParam();
  run_ranks(size, [&](World& world) {
    for (std::int64_t root = 0; root < world.size(); ++root) {
      auto tensor = numbers_of(world.rank(), 9, type);
      world.all().broadcast(tensor, root, {"test"}).wait();
      EXPECT_TRUE(tensor.equal(numbers_of(root, 9, type)));
    }
  });
}

TEST_P(Collectives, TransfersAroundARing) {
  const auto [size, type] = GetParam();
  if (size == 1) return;  // a transfer needs two
  run_ranks(size, [&](World& world) {
    auto& group = world.all();
    const auto next = (world.rank() + 1) % world.size();
    const auto previous = (world.rank() - 1 + world.size()) % world.size();
    auto first = at::zeros({4}, type);
    auto second = at::zeros({4}, type);
    auto receive_first = group.receive(first, previous, {"ring", 0});
    auto receive_second = group.receive(second, previous, {"ring", 1});
    auto send_first = group.send(numbers_of(world.rank(), 4, type), next, {"ring", 0});
    auto send_second = group.send(numbers_of(world.rank() + 10, 4, type), next, {"ring", 1});
    receive_second.wait();
    receive_first.wait();
    EXPECT_TRUE(first.equal(numbers_of(previous, 4, type)));
    EXPECT_TRUE(second.equal(numbers_of(previous + 10, 4, type)));
  });
}

TEST_P(Collectives, AllToAll) {
  const auto [size, type] = GetParam();
  run_ranks(size, [&](World& world) {
    // Rank s sends (s + 2 t) mod 4 rows to t: none for some pairs, and other numbers back than forth.
    const auto rows = [](std::int64_t source, std::int64_t target) { return (source + 2 * target) % 4; };
    const auto message = [&](std::int64_t source, std::int64_t target) {
      return numbers_of(10 * source + target, 3 * rows(source, target), type).view({-1, 3});
    };
    std::vector<at::Tensor> sent, expected;
    std::vector<std::int64_t> input_rows, output_rows;
    for (std::int64_t peer = 0; peer < world.size(); ++peer) {
      sent.push_back(message(world.rank(), peer));
      expected.push_back(message(peer, world.rank()));
      input_rows.push_back(sent.back().size(0));
      output_rows.push_back(expected.back().size(0));
    }
    const auto input = at::cat(sent);
    auto output = at::zeros_like(at::cat(expected));
    auto back = at::zeros_like(input);
    world.all().all_to_all(output, input, output_rows, input_rows, {"test"}).wait();
    EXPECT_TRUE(output.equal(at::cat(expected)));
    world.all().all_to_all(back, output, input_rows, output_rows, {"test back"}).wait();
    EXPECT_TRUE(back.equal(input));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Values(Case{1, at::kFloat}, Case{2, at::kFloat}, Case{3, at::kFloat},
                                           Case{4, at::kFloat}, Case{1, at::kBFloat16}, Case{2, at::kBFloat16},
                                           Case{3, at::kBFloat16}, Case{4, at::kBFloat16}, Case{2, at::kHalf},
                                           Case{3, at::kLong}),
                         [](const auto& info) {
                           return std::to_string(info.param.size) + "_" + c10::toString(info.param.type);
                         });

TEST(Group, SumsInTheOrderOfRanks) {
  // Neighbours in size differ, so another order of adding would give other bits.
  const auto values = [](std::int64_t rank) {
    return at::arange(4000, at::kDouble).mul(static_cast<double>(rank + 1)).sin().mul(1e3).to(at::kFloat);
  };
  run_ranks(4, [&](World& world) {
    auto expected = values(0);
    for (std::int64_t rank = 1; rank < 4; ++rank) expected.add_(values(rank));
    for (int repetition = 0; repetition < 3; ++repetition) {
      auto output = at::empty({1000}, at::kFloat);
      world.all().reduce_scatter(output, values(world.rank()), ReduceOp::kSum, {"test"}).wait();
      EXPECT_TRUE(output.equal(expected.narrow(0, world.rank() * 1000, 1000)));
    }
  });
}

TEST(Group, SeveralCallsUnderWay) {
  run_ranks(3, [](World& world) {
    auto& group = world.all();
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (std::int64_t i = 0; i < 8; ++i) {
      tensors.push_back(at::full({1000}, static_cast<double>(world.rank() + i), at::kFloat));
      works.push_back(group.all_reduce(tensors.back(), ReduceOp::kSum, {"bucket", i}));
      auto whole = at::zeros({3}, at::kFloat);
      whole[world.rank()] = static_cast<float>(i);
      tensors.push_back(whole);
      works.push_back(group.all_gather(whole, whole.narrow(0, world.rank(), 1), {"parameters", i}));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) {
      work->wait();
      work->wait();
      EXPECT_TRUE(work->is_done());
    }
    for (std::int64_t i = 0; i < 8; ++i) {
      const auto place = static_cast<std::size_t>(2 * i);
      EXPECT_TRUE(tensors[place].equal(at::full({1000}, static_cast<double>(3 + 3 * i), at::kFloat)));
      EXPECT_TRUE(tensors[place + 1].equal(at::full({3}, static_cast<double>(i), at::kFloat)));
    }
  });
}

TEST(Group, AverageIsForFloatingPoint) {
  World world(RankEnvironment{}, {});
  EXPECT_THROW(world.all().all_reduce(at::ones({2}, at::kLong), ReduceOp::kAverage, {"test"}).wait(),
               base::InternalError);
}

TEST(Group, AllToAllChecksItsRows) {
  World world(RankEnvironment{}, {});
  const auto two = at::ones({2, 3});
  EXPECT_THROW(world.all().all_to_all(two, two, {3}, {2}, {"test"}).wait(), base::InternalError);
  EXPECT_THROW(world.all().all_to_all(two, two, {1, 1}, {2}, {"test"}).wait(), base::InternalError);
  EXPECT_THROW(world.all().all_to_all(at::ones({1, 3}), two, {1}, {2}, {"test"}).wait(), base::InternalError);
  EXPECT_THROW(world.all().all_to_all(at::ones({2, 4}), two, {2}, {2}, {"test"}).wait(), base::InternalError);
}

TEST(Group, AllToAllWithoutARow) {
  run_ranks(3, [](World& world) {
    const auto none = at::empty({0, 5});
    world.all().all_to_all(none, none, {0, 0, 0}, {0, 0, 0}, {"test"}).wait();
    auto output = at::zeros({world.rank() == 2 ? 2 : 0, 1});
    const auto input = world.rank() == 0 ? at::ones({2, 1}) : at::empty({0, 1});
    const std::vector<std::int64_t> nobody(3, 0);
    world.all()
        .all_to_all(output, input, world.rank() == 2 ? std::vector<std::int64_t>{2, 0, 0} : nobody,
                    world.rank() == 0 ? std::vector<std::int64_t>{0, 0, 2} : nobody, {"test"})
        .wait();
    EXPECT_TRUE(output.equal(at::ones_like(output)));
  });
}

TEST(Group, WorkWaitsWhereNobodyDid) {
  run_ranks(2, [](World& world) {
    auto tensor = at::ones({100000}, at::kFloat);
    { const auto work = world.all().all_reduce(tensor, ReduceOp::kAverage, {"test"}); }
    EXPECT_TRUE(tensor.equal(at::ones({100000}, at::kFloat)));
    Work work = world.all().all_reduce(tensor, ReduceOp::kSum, {"test"});
    work = Work();
    EXPECT_TRUE(tensor.equal(at::full({100000}, 2.0, at::kFloat)));
    EXPECT_TRUE(work.is_done());
    work.wait();
  });
}

TEST(Group, TensorsThatNeedGradients) {
  run_ranks(2, [](World& world) {
    auto parameter = at::ones({4}, at::kFloat).requires_grad_();
    world.all().broadcast(parameter, 0, {"test"}).wait();
    world.all().all_reduce(parameter, ReduceOp::kAverage, {"test"}).wait();
    world.all().all_gather(parameter, parameter.narrow(0, 2 * world.rank(), 2), {"test"}).wait();
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_TRUE(parameter.equal(at::ones({4}, at::kFloat)));
  });
}

TEST(Group, InterleavedGroupsOfAMesh) {
  run_ranks(4, [](World& world) {
    const Mesh mesh(4, {.tensor = 2});
    auto& tensor_group = world.group(mesh, {MeshDim::kTensor});
    auto& data_group = world.group(mesh, {MeshDim::kData, MeshDim::kContext});
    EXPECT_EQ(tensor_group.name(), "tp");
    EXPECT_EQ(data_group.name(), "dp-cp");
    EXPECT_EQ(&tensor_group, &world.group(mesh, {MeshDim::kTensor}));
    EXPECT_EQ(tensor_group.ranks(), mesh.group(world.rank(), {MeshDim::kTensor}));
    EXPECT_EQ(world.groups().size(), 2U);
    auto first = at::full({2}, static_cast<double>(world.rank()), at::kFloat);
    auto second = first.clone();
    auto over_tensor = tensor_group.all_reduce(first, ReduceOp::kSum, {"tensor"});
    auto over_data = data_group.all_reduce(second, ReduceOp::kSum, {"data"});
    over_data.wait();
    over_tensor.wait();
    EXPECT_EQ(first[0].item<float>(), world.rank() < 2 ? 1 : 5);
    EXPECT_EQ(second[0].item<float>(), world.rank() % 2 == 0 ? 2 : 4);
  });
}

TEST(Group, NumbersOfTheHost) {
  run_ranks(3, [](World& world) {
    const auto rank = static_cast<double>(world.rank());
    EXPECT_EQ(world.all().reduce_values({rank, -rank, 0.1}, ReduceOp::kMax, {"test"}),
              (std::vector<double>{2, 0, 0.1}));
    EXPECT_EQ(world.all().reduce_value(rank, ReduceOp::kAverage, {"test"}), 1);
    EXPECT_TRUE(world.all().reduce_values({}, ReduceOp::kSum, {"test"}).empty());
  });
}

TEST(Group, BarrierHoldsUntilAllHaveCome) {
  std::atomic<int> num_come = 0;
  run_ranks(4, [&](World& world) {
    for (int round = 1; round <= 5; ++round) {
      ++num_come;
      world.all().barrier({"test"});
      EXPECT_GE(num_come.load(), 4 * round);
      world.all().barrier({"test"});
    }
  });
}

TEST(Group, AloneEverythingIsDoneAtOnce) {
  run_ranks(2, [](World& world) {
    auto& group = world.group("alone", {world.rank()});
    EXPECT_EQ(group.size(), 1);
    EXPECT_EQ(group.rank(), 0);
    auto tensor = at::ones({4}, at::kFloat);
    auto copy = at::zeros({4}, at::kFloat);
    EXPECT_TRUE(group.all_reduce(tensor, ReduceOp::kSum, {"test"}).is_done());
    EXPECT_TRUE(group.all_gather(copy, tensor, {"test"}).is_done());
    EXPECT_TRUE(copy.equal(tensor));
    copy.zero_();
    EXPECT_TRUE(group.reduce_scatter(copy, tensor, ReduceOp::kSum, {"test"}).is_done());
    EXPECT_TRUE(copy.equal(tensor));
    EXPECT_TRUE(group.broadcast(tensor, 0, {"test"}).is_done());
    group.barrier({"test"});
    EXPECT_EQ(group.reduce_value(5, ReduceOp::kAverage, {"test"}), 5);
  });
}

std::string error_of_rank_0(std::int64_t size, const std::function<void(Group&)>& body,
                            std::chrono::milliseconds timeout) {
  std::string said;
  run_ranks(size,
            [&](World& world) {
              auto& group = world.group(
                  "dp", world.size() == 2 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0, 1, 2});
              world.set_timeout(timeout);
              if (world.rank() != 0) {
                if (timeout < std::chrono::seconds(10)) world.exchange("rank 0 has given up", "");
                return;
              }
              try {
                body(group);
              } catch (const CommunicationError& error) {
                said = error.what();
              }
              if (timeout < std::chrono::seconds(10)) world.exchange("rank 0 has given up", "");
            },
            {.timeout = timeout});
  return said;
}

TEST(Group, PeerDoesNotCome) {
  const struct {
    const char* said;
    std::function<void(Group&)> body;
  } kCases[] = {
      {"all_reduce \"gradient bucket 3\", call 1 in group dp (ranks 0, 1)",
       [](Group& group) {
         group.all_reduce(at::ones({4}), ReduceOp::kSum, {"gradient bucket", 3}).wait();
       }},
      {"reduce_scatter \"gradients\", call 1 in group dp (ranks 0, 1)",
       [](Group& group) { group.reduce_scatter(at::ones({2}), at::ones({4}), ReduceOp::kSum, {"gradients"}).wait(); }},
      {"all_gather \"parameters\", call 1",
       [](Group& group) { group.all_gather(at::ones({4}), at::ones({2}), {"parameters"}).wait(); }},
      {"receive \"activations\", call 1 in group dp (ranks 0, 1), from rank 1",
       [](Group& group) { group.receive(at::ones({4}), 1, {"activations"}).wait(); }},
      {"barrier \"save\", call 1", [](Group& group) { group.barrier({"save"}); }},
      {"broadcast \"seed\", call 1",
       [](Group& group) {
         auto tensor = at::ones({4});
         group.broadcast(tensor, 1, {"seed"}).wait();
       }},
  };
  for (const auto& [said, body] : kCases) {
    const auto error = error_of_rank_0(2, body, std::chrono::milliseconds(200));
    EXPECT_THAT(error, ::testing::HasSubstr(said));
    EXPECT_THAT(error, ::testing::HasSubstr("did not come within the time-out of 200 ms"));
  }
}

TEST(Group, ErrorNobodyWaitedForIsThrownByTheNextCall) {
  const auto error = error_of_rank_0(
      2,
      [](Group& group) {
        { const auto work = group.receive(at::ones({4}), 1, {"first"}); }
        group.send(at::ones({4}), 1, {"second"}).wait();
      },
      std::chrono::milliseconds(200));
  EXPECT_THAT(error, ::testing::HasSubstr("receive \"first\", call 1"));
}

TEST(Group, PeerIsGone) {
  std::string said;
  try {
    run_ranks(3, [&](World& world) {
      auto& group = world.all();
      world.exchange("the group is there", "");
      if (world.rank() == 2) throw std::runtime_error("rank 2 broke");
      try {
        for (;;) group.all_reduce(at::ones({4}), ReduceOp::kSum, {"gradients"}).wait();
      } catch (const CommunicationError& error) {
        if (world.rank() == 0) said = error.what();
        throw;
      }
    });
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 2 broke");
  }
  EXPECT_THAT(said, ::testing::HasSubstr("all_reduce \"gradients\", call 1 in group world (ranks 0, 1, 2)"));
  EXPECT_THAT(said, ::testing::HasSubstr("the connection to a peer broke"));
}

}  // namespace
}  // namespace pharos::comm
