#include "pharos/optim/schedule/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/config/schema/enum_names.h"

namespace pharos::optim {
namespace {

using config::LrDecayStyle;
using config::WeightDecayIncrStyle;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename T>
T parse_enum(const std::string& name) {
  for (const auto& spelling : config::spellings(T{})) {
    if (spelling.name == name) return static_cast<T>(spelling.value);
  }
  throw std::invalid_argument(name);
}

LrScheduleOptions options_from(const nlohmann::json& args) {
  LrScheduleOptions options;
  options.init_lr = args.at("init_lr");
  options.max_lr = args.at("max_lr");
  options.min_lr = args.at("min_lr");
  options.lr_warmup_steps = args.at("lr_warmup_steps");
  options.lr_decay_steps = args.at("lr_decay_steps");
  options.lr_decay_style = parse_enum<LrDecayStyle>(args.at("lr_decay_style"));
  options.start_wd = args.at("start_wd");
  options.end_wd = args.at("end_wd");
  options.wd_incr_steps = args.at("wd_incr_steps");
  options.wd_incr_style = parse_enum<WeightDecayIncrStyle>(args.at("wd_incr_style"));
  options.wsd_decay_steps = args.value("wsd_decay_steps", 0);
  if (args.contains("lr_wsd_decay_style")) {
    options.lr_wsd_decay_style = parse_enum<config::WsdDecayStyle>(args.at("lr_wsd_decay_style"));
  }
  return options;
}

// Learning rate and weight decay of every style equal Megatron's, to 1e-15 relative.
TEST(LrSchedule, EqualsMegatron) {
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/megatron/lr.json");
  int num_compared = 0;
  for (const auto& expected : oracle.at("cases")) {
    LrSchedule schedule(options_from(expected.at("args")));
    const std::int64_t increment = expected.at("increment");
    std::int64_t iteration = 0;
    for (const auto& value : expected.at("values")) {
      for (; iteration < value.at("iteration"); ++iteration) schedule.advance(increment);
      const double learning_rate = value.at("lr"), weight_decay = value.at("weight_decay");
      EXPECT_EQ(schedule.num_steps(), value.at("num_steps").get<std::int64_t>());
      EXPECT_NEAR(schedule.learning_rate(), learning_rate, 1e-15 * learning_rate)
          << expected.at("name") << ' ' << value;
      EXPECT_NEAR(schedule.weight_decay(), weight_decay, 1e-15 * weight_decay) << expected.at("name") << ' ' << value;
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 10 * 15);
}

config::RunConfig small_config() {
  config::RunConfig config;
  config.train.global_batch_size = 8;
  config.train.micro_batch_size = 2;
  config.train.train_iters = 100;
  config.optimizer.lr = 1e-3;
  config.optimizer.weight_decay = 0.1;
  return config;
}

LrScheduleOptions derive(const config::RunConfig& config, std::vector<std::string>* warnings = nullptr) {
  std::vector<std::string> ignored;
  return lr_schedule_options(config, BatchSchedule(batch_schedule_options(config, 2)), warnings ? *warnings : ignored);
}

TEST(LrScheduleOptions, FollowFromTheConfiguration) {
  config::RunConfig config = small_config();
  LrScheduleOptions options = derive(config);
  EXPECT_EQ(options.lr_decay_steps, 800);  // train_iters · GBS
  EXPECT_EQ(options.wd_incr_steps, 800);
  EXPECT_EQ(options.wsd_decay_steps, 800);
  EXPECT_EQ(options.min_lr, 0);
  EXPECT_EQ(options.start_wd, 0.1);
  EXPECT_EQ(options.end_wd, 0.1);

  config.scheduler.lr_decay_iters = 50;
  config.scheduler.lr_warmup_iters = 5;
  config.scheduler.lr_wsd_decay_iters = 10;
  config.scheduler.start_weight_decay = config.scheduler.end_weight_decay = 0.033;
  options = derive(config);
  EXPECT_EQ(options.lr_decay_steps, 400);
  EXPECT_EQ(options.lr_warmup_steps, 40);
  EXPECT_EQ(options.wsd_decay_steps, 80);
  EXPECT_EQ(options.wd_incr_steps, 800);
  EXPECT_EQ(options.end_wd, 0.033);

  config.scheduler = {};
  config.scheduler.lr_warmup_fraction = 0.01;
  EXPECT_EQ(derive(config).lr_warmup_steps, 0.01 * 800);

  config.scheduler = {};
  config.scheduler.max_steps = 200;
  EXPECT_EQ(derive(config).lr_decay_steps, 1600);
  config.scheduler.max_steps = 20;
  EXPECT_EQ(derive(config).lr_decay_steps, 800);
}

TEST(LrScheduleOptions, CountSamples) {
  config::RunConfig config = small_config();
  config.train.train_iters.reset();
  config.train.train_samples = 1001;
  config.scheduler.lr_warmup_samples = 100;
  LrScheduleOptions options = derive(config);
  EXPECT_EQ(options.lr_decay_steps, 1001);
  EXPECT_EQ(options.wd_incr_steps, 1001);
  EXPECT_EQ(options.lr_warmup_steps, 100);
  config.scheduler.lr_decay_samples = 500;
  EXPECT_EQ(derive(config).lr_decay_steps, 500);
}

// With ramp-up the horizon is the samples of the steps as they run: 4 steps of 4 samples, then 96 of 8.
TEST(LrScheduleOptions, FollowRampUp) {
  config::RunConfig config = small_config();
  config.train.rampup_batch_size = {4, 4, 16};
  config.scheduler.lr_wsd_decay_iters = 10;
  const LrScheduleOptions options = derive(config);
  EXPECT_EQ(options.lr_decay_steps, 4 * 4 + 96 * 8);
  EXPECT_EQ(options.wsd_decay_steps, 10 * 8);
}

TEST(LrScheduleOptions, CutsTheWarmupWithAWarning) {
  config::RunConfig config = small_config();
  config.scheduler.lr_warmup_iters = 100;
  std::vector<std::string> warnings;
  EXPECT_EQ(derive(config, &warnings).lr_warmup_steps, 799);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("it is cut to 799 samples")));
  config.scheduler.lr_warmup_iters = 99;
  warnings.clear();
  EXPECT_EQ(derive(config, &warnings).lr_warmup_steps, 792);
  EXPECT_THAT(warnings, IsEmpty());
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no UserError";
}

TEST(LrSchedule, RefusesImpossibleConfigurations) {
  struct Case {
    std::function<void(config::RunConfig&)> change;
    const char* words;
  };
  const Case cases[] = {
      {[](auto& c) { c.optimizer.lr.reset(); }, "optimizer.lr is not set"},
      {[](auto& c) { c.optimizer.min_lr = 1; }, "optimizer.min_lr = 1"},
      {[](auto& c) { c.scheduler.lr_warmup_init = 0.5; }, "scheduler.lr_warmup_init = 0.5"},
      {[](auto& c) { c.scheduler.lr_decay_iters = 0; }, "decays over 0 samples"},
      {[](auto& c) { c.scheduler.start_weight_decay = 0.01; }, "weight_decay_incr_style = constant"},
      {[](auto& c) { c.scheduler.end_weight_decay = 0.01; }, "out of order"},
      {[](auto& c) { c.scheduler.lr_decay_samples = 10; },
       "The run is counted in train.train_iters, its scheduler in samples"},
      {[](auto& c) {
         c.train.train_iters.reset();
         c.train.train_samples = 80;
         c.scheduler.lr_warmup_iters = 1;
       },
       "The run is counted in train.train_samples, its scheduler in iterations"},
      {[](auto& c) { c.train.train_iters.reset(); }, "Neither train.train_iters nor"},
      {[](auto& c) {
         c.scheduler.lr_warmup_fraction = 0.1;
         c.scheduler.lr_warmup_iters = 1;
       },
       "lr_warmup_fraction is set beside"},
  };
  EXPECT_EQ(message_of([] { LrSchedule(derive(small_config())); }), "no UserError");
  for (const Case& c : cases) {
    config::RunConfig config = small_config();
    c.change(config);
    EXPECT_THAT(message_of([&] { LrSchedule(derive(config)); }), HasSubstr(c.words));
  }
}

TEST(LrSchedule, StateRoundTrips) {
  LrSchedule schedule(derive(small_config()));
  schedule.advance(160);
  const nlohmann::json state = schedule.save();
  std::vector<std::string> keys;
  for (const auto& [key, value] : state.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("end_wd", "lr_decay_steps", "lr_decay_style", "lr_warmup_steps", "max_lr", "min_lr",
                                "num_steps", "start_wd", "wd_incr_steps", "wd_incr_style"));
  LrSchedule resumed(derive(small_config()));
  resumed.restore(nlohmann::json::parse(state.dump()), StoredSchedule::kMustMatch);
  EXPECT_EQ(resumed.learning_rate(), schedule.learning_rate());
  EXPECT_EQ(resumed.num_steps(), 160);
}

TEST(LrSchedule, StoredValuesAreMatchedIgnoredOrTaken) {
  config::RunConfig config = small_config();
  LrSchedule stored(derive(config));
  stored.advance(400);
  config.optimizer.lr = 5e-4;
  config.scheduler.lr_decay_style = LrDecayStyle::kCosine;
  const LrScheduleOptions options = derive(config);

  LrSchedule strict(options);
  EXPECT_THAT(message_of([&] { strict.restore(stored.save(), StoredSchedule::kMustMatch); }),
              HasSubstr("max_lr = 0.001"));
  EXPECT_EQ(strict.num_steps(), 0);
  LrSchedule own(options);
  own.restore(stored.save(), StoredSchedule::kIgnore);
  EXPECT_EQ(own.learning_rate(), LrSchedule(options).learning_rate_at(400));
  LrSchedule taken(options);
  taken.restore(stored.save(), StoredSchedule::kTake);
  EXPECT_EQ(taken.learning_rate(), stored.learning_rate());
  EXPECT_THAT(message_of([&] { own.restore({{"num_steps", 3}}, StoredSchedule::kTake); }), HasSubstr("cannot be read"));

  config.scheduler.override_opt_param_scheduler = true;
  EXPECT_EQ(stored_schedule_policy(config.scheduler), StoredSchedule::kIgnore);
  config.scheduler.use_checkpoint_opt_param_scheduler = true;
  EXPECT_THROW(stored_schedule_policy(config.scheduler), base::UserError);
  config.scheduler.override_opt_param_scheduler = false;
  EXPECT_EQ(stored_schedule_policy(config.scheduler), StoredSchedule::kTake);
  EXPECT_EQ(stored_schedule_policy({}), StoredSchedule::kMustMatch);
}

}  // namespace
}  // namespace pharos::optim
